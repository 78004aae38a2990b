"""The investigation packet made readable: pictures, display sections, one offline HTML file."""
