"""The paper's experiments: configurations, studies that run them, and the tables that come of their records."""
