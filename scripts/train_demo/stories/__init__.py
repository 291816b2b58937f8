"""The parts of the story generator; `storygen.py` puts them together."""
