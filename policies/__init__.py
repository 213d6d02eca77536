"""Every policy that ships with kvtwin: plain classes over `core.interfaces`, one file a policy."""
