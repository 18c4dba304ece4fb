"""The sides of the comparisons: `CASES` maps a case to `f(folder of the model, parent)`, which runs the rounds."""
