"""The one part of the build that pyproject.toml cannot say: a module in C, which the package also works without."""

import glob
import sys

from setuptools import Extension, setup

# No -ffast-math: a NaN has to stay one, and sums are taken in their order.
FLAGS = (
    []
    if sys.platform == "win32"
    else ["-O3", "-fno-math-errno", "-fno-trapping-math", "-fno-tree-loop-distribute-patterns", "-fopenmp"]
)

setup(
    ext_modules=[
        Extension(
            "lyapflow_graph.kernels._cpu",
            sources=["lyapflow_graph/kernels/cpu.c"],
            depends=sorted(glob.glob("lyapflow_graph/kernels/*.h")),
            extra_compile_args=FLAGS,
            extra_link_args=[flag for flag in FLAGS if flag == "-fopenmp"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
