"""The schemes, one file each; `stripectl.core.scheme.schemes` finds them by listing this folder."""
