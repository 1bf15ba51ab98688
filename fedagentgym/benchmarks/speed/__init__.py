"""How fast each part is: `fedagentgym bench speed-*`."""
