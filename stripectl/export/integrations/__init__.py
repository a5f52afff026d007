"""One file per integration; `stripectl.export.integration.integrations` finds them by listing this folder."""
