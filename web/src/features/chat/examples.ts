/** Offered in an empty chat. Chosen for a small story model; a larger one will do more than these. */
export const EXAMPLE_PROMPTS = [
  "Tell me a story about a fox.",
  "What does a cow say?",
  "What is the capital of France?",
] as const;

/** What the model inside the package is, by the name under which it is served. */
export const DEMO_MODEL = {
  id: "colibri-demo",
  about: "A small demo model: it tells little stories and knows a few facts.",
} as const;
