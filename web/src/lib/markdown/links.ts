const ALLOWED = new Set(["http:", "https:", "mailto:"]);

/** The link as it may be followed, or null. Relative and scripted targets from a model lead nowhere good. */
export function safeUrl(target: string): URL | null {
  let url: URL;
  try {
    url = new URL(target);
  } catch {
    return null;
  }
  return ALLOWED.has(url.protocol) ? url : null;
}

/** What a reader must know before following: where it leads. */
export function shownTarget(url: URL): string {
  return url.protocol === "mailto:" ? url.pathname : url.host;
}
