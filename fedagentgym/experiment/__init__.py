"""Runs from configuration to result: settings, `fedagentgym.train`, export, plans of many runs, result tables, reports."""
