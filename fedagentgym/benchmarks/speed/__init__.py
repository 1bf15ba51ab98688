"""The speed of each part: `fedagentgym bench run speed-*`."""
