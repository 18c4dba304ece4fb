"""The parts of the site that are written by code: formulas, equations, algorithms, settings, errata."""
