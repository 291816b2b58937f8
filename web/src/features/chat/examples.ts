/** Offered in an empty chat. Chosen for a small story model; a larger one will do more than these. */
export const EXAMPLE_PROMPTS = [
  "Tell me a story about a brave little fox.",
  "What sound does a cow make?",
  "What is the capital of France?",
] as const;
