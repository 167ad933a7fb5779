"""Attention and the like, on top of recurrent layers (torch only, usable without fairseq)."""
