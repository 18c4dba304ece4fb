"""The sides of the comparisons: `CASES` maps a case to `f(folder of the model, pace)`, which runs the rounds."""
