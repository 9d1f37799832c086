"""The one part of the build that pyproject.toml cannot say: a module in C, which the package also works without."""

import glob
import os
import sys

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel

# No -ffast-math: a NaN has to stay one, and sums are taken in their order.
FLAGS = (
    []
    if sys.platform == "win32"
    else ["-O3", "-fno-math-errno", "-fno-trapping-math", "-fno-tree-loop-distribute-patterns", "-fopenmp"]
)


class Wheel(bdist_wheel):
    """A wheel for any platform where the module in C could not be compiled: one for this platform would hide that."""

    def run(self) -> None:
        self.run_command("build_ext")
        if not all(os.path.exists(path) for path in self.get_finalized_command("build_ext").get_outputs()):
            self.announce("no C compiler: the wheel has no kernels, and graphs run on plain torch", level=4)
            self.distribution.ext_modules = []
            self.root_is_pure, self.py_limited_api = True, False
        super().run()


setup(
    cmdclass={"bdist_wheel": Wheel},
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
