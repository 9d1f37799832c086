"""Configuration of the documentation site; `make docs` builds it with warnings as errors."""

import os
import re
from pathlib import Path

import lyapflow

os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])  # tutorials import `examples`

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
    "sphinx-mathjax-offline",  # after the one before: brings MathJax along, so that no page needs a network
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",  # the cards of the start page
]
exclude_patterns = ["_build"]
default_role = "literal"  # of `names` in docstrings

html_theme = "furo"
pygments_style, pygments_dark_style = "default", "github-dark"
html_title = "lyapflow"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_js_files = ["maths.js"]
html_favicon = "_static/logo.svg"
html_show_sphinx = False
_fonts = {
    "font-stack": 'system-ui, -apple-system, "Segoe UI", "Noto Sans", "Liberation Sans", "DejaVu Sans", Helvetica, '
    'Arial, sans-serif, "Apple Color Emoji", "Segoe UI Emoji"',
    "font-stack--monospace": 'ui-monospace, SFMono-Regular, Menlo, Consolas, "Noto Sans Mono", "Liberation Mono", '
    '"DejaVu Sans Mono", monospace',
}
html_theme_options = {
    "top_of_page_buttons": [],
    "light_logo": "logo.svg",
    "dark_logo": "logo.svg",
    "light_css_variables": {
        **_fonts,
        "color-brand-primary": "#0a58b5",
        "color-brand-content": "#0a58b5",
        "color-brand-visited": "#0a58b5",
    },
    "dark_css_variables": {
        "color-brand-primary": "#6cb2ff",
        "color-brand-content": "#6cb2ff",
        "color-brand-visited": "#6cb2ff",
    },
}

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4

# A tutorial that no longer runs must break the build.
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True  # lines that one cell prints are one box
nb_output_stderr = "remove"  # warnings of libraries about notebooks, with paths of the machine that builds
nb_render_markdown_format = "myst"  # of outputs: with tables and maths
nb_ipywidgets_js = {}  # they would be fetched from elsewhere, and no page has any

autodoc_default_options = {"members": True, "show-inheritance": True, "exclude-members": "extra_repr"}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_maximum_signature_line_length = 88
# "Attributes:" sections become fields of their class rather than entries, which autodoc already writes.
napoleon_use_ivar = True
napoleon_numpy_docstring = False

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def _without_last_empty_line(app, docname, source):
    """Doctest ends an output at an empty line, which a reader need not see."""
    source[0] = re.sub(r"(```pycon\n(?:(?!```).)*\n)\n(?=```)", r"\1", source[0], flags=re.DOTALL)


def setup(app):
    app.connect("source-read", _without_last_empty_line)
