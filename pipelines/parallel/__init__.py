"""Which rank does what (mesh), and how ranks of one host and of several sum tensors."""
