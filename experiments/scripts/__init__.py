"""Measurements on trained models that are not a table of runs. Run each as `python -m experiments.scripts.NAME`."""
