"""The commands, one module each; they parse options, call the packages below, and print."""
