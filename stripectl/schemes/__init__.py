"""The schemes, one file each; `stripectl.scheme.schemes` finds them by listing this folder."""
