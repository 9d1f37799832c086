"""Learned energies, tangential flows and the Lyapunov fields they form, with certificates that the energy decays."""

__version__ = "0.1.0.dev0"

__all__ = ["__version__"]
