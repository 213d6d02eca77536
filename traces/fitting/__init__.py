"""The parts of fitting a recipe to a trace; `traces.fit` puts them together."""
