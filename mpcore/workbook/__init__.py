"""What the notebooks show and ask: explorers (widgets), exercises, the environment check.

Floor 9: builds on everything below, reports included.
"""
