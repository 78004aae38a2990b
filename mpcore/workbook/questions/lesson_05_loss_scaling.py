"""What lesson 05 asks: loss scaling."""
