"""Figures as plain functions: data in, a matplotlib figure out."""
