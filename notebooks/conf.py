"""Configuration of the documentation site. To build it: `sphinx-build -W --keep-going -j auto -b html notebooks build/site`."""

import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "experiments")]

pyproject = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
links = {name.lower(): url for name, url in pyproject.get("urls", {}).items()}

project = "rljax"
author = "The rljax authors"
project_copyright = "The rljax authors, Apache-2.0"
version = release = pyproject["version"]
extensions = ["myst_nb", "sphinx_copybutton", "book_site.extension", "book_site.mathml"]
exclude_patterns = ["book_site", "static"]
smartquotes = False  # keep the two hyphens of `--steps`
highlight_language = "none"  # blocks without a language are shell commands

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the notebooks are committed with their outputs; tests/notebooks runs them
nb_merge_streams = True
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = f"rljax {release}"
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
if "repository" in links:  # every page links to its source
    html_theme_options = {
        "source_repository": links["repository"],
        "source_branch": "main",
        "source_directory": "notebooks/",
    }
