"""Floor 3: the book. What the equations are, where each comes from, and what the documents about them get wrong."""
