"""What the lessons ask, a module for each: solutions, wrong answers with reasons, predictions.

The solution is the one source of an exercise: the stub in the notebook is its signature and
docstring.
"""
