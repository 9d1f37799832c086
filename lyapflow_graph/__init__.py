"""Lyapunov fields on graphs: backbones, graph energies and tangents, TANGO, diagnostics, data and training."""
