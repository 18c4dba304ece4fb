"""The cases of each library: `CASES` maps a case's name to a function of the model's folder and the parent, which runs rounds."""
