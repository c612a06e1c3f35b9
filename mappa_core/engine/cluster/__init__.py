"""The engine `cluster`: learners by DeepSpeed and samplers by vLLM, as actors of Ray.

Import from its modules: what plans a placement or looks what is installed must work where these libraries are not.
"""
