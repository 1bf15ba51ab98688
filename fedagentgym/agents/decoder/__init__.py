"""The decoder of Llama's family, written out once: its architectures, one layer, and two passes through it.

* `architectures`: the list of them, and which models are of this kind;
* `layer`: a layer's modules, by the names that Hugging Face gives them, and the order of its operations;
* `packed`: states of whole rows with gradients, without padding, common beginnings once;
* `cached`: the next token of growing rows, adapters merged, over a cache of keys and values (`cache`);
* `module`: a plain torch module with the same names, for models that are read without `transformers`.
"""
