"""Split files and label files: their content, reading and writing."""
