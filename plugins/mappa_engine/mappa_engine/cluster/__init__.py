"""Engine `cluster`: DeepSpeed learners and vLLM samplers as Ray actors.

Import from its modules: planning a placement and checking requirements must work where these libraries are missing.
"""
