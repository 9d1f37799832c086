"""Configuration of the documentation site; `make docs` builds it with warnings as errors."""

import lyapflow

project = "lyapflow"
author = "the lyapflow authors"
copyright = "2026, the lyapflow authors"
release = lyapflow.__version__
version = ".".join(release.split(".")[:2])

extensions = [
    "myst_nb",  # Markdown pages, and tutorials that are executed when the site is built
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"lyapflow {release}"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# A tutorial that no longer runs must break the build.
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 300

autodoc_default_options = {"members": True, "show-inheritance": True, "exclude-members": "extra_repr"}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_maximum_signature_line_length = 88
# "Attributes:" sections become fields of their class rather than entries, which autodoc already writes.
napoleon_use_ivar = True
napoleon_numpy_docstring = False

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
