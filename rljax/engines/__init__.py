"""Engines outside the process: responses are sampled by a server that gets the weights of each step."""
