"""Blanks written by a model: text.py -> rows.py -> fill.py, with unpacked.py and sampling.py."""
