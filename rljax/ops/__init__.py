"""Floor 1: equations. Arrays in, arrays out; no parameters, no mesh, no configuration."""
