"""Split files and label files: what they hold, and how they are read and written."""
