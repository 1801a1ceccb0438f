def is_mistral_tokenizer(obj):
    return False
