"""Floor 2: tasks, datasets, tokenizers and the order in which prompts are served; no model, no mesh.

Importing this package imports none of its modules, so that `transformers` and `grain` load only where they are used.
"""
