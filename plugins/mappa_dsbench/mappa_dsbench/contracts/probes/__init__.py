"""Programs that open agents' files. They run in the sandbox without Mappa: each is sent as one text, preceded by the
modules of this folder that it imports. So module-level names must be unique across these modules."""
