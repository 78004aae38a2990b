"""What is run: the language model, its tokeniser, and passages that are deployment slices."""
