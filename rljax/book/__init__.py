"""Floor 3: the book: an index of the equations and their sources, and errata of documents about them."""
