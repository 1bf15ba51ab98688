"""How fast each part is: `fedagentgym bench run speed-*`."""
