/** The little colour arithmetic the palette needs: oklch text to linear mixing to packed sRGB bytes. */

/** A colour in OKLab: equal steps look equal, so mixing two of them never passes through mud. */
export interface Lab {
  l: number;
  a: number;
  b: number;
}

export function oklch(l: number, chroma: number, hue: number): Lab {
  const angle = (hue * Math.PI) / 180;
  return { l, a: chroma * Math.cos(angle), b: chroma * Math.sin(angle) };
}

/** Reads `oklch(0.7 0.1 150)` or, as minifiers write it, `oklch(70% .1 150)`. */
export function parseOklch(text: string): Lab | null {
  const match = /^\s*oklch\(\s*([\d.]+)(%?)\s+([\d.]+)\s+([\d.]+)(?:deg)?\s*\)\s*$/.exec(text);
  if (!match) return null;
  const l = Number(match[1]) / (match[2] === "%" ? 100 : 1);
  return oklch(l, Number(match[3]), Number(match[4]));
}

export function mix(from: Lab, to: Lab, amount: number): Lab {
  return {
    l: from.l + (to.l - from.l) * amount,
    a: from.a + (to.a - from.a) * amount,
    b: from.b + (to.b - from.b) * amount,
  };
}

function channel(linear: number): number {
  const clipped = Math.min(1, Math.max(0, linear));
  const encoded = clipped <= 0.0031308 ? 12.92 * clipped : 1.055 * clipped ** (1 / 2.4) - 0.055;
  return Math.round(encoded * 255);
}

export function toRgb(color: Lab): [number, number, number] {
  const l = (color.l + 0.3963377774 * color.a + 0.2158037573 * color.b) ** 3;
  const m = (color.l - 0.1055613458 * color.a - 0.0638541728 * color.b) ** 3;
  const s = (color.l - 0.0894841775 * color.a - 1.291485548 * color.b) ** 3;
  return [
    channel(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
    channel(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
    channel(-0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s),
  ];
}

/** Opaque pixel for a `Uint32Array` over `ImageData`, whose bytes are R, G, B, A on every platform we meet. */
export function pack(color: Lab): number {
  const [r, g, b] = toRgb(color);
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}
