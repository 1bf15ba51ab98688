"""Runs on disk: the folder of a run, its record, its replay, the check of its numbers, and archives of runs."""
