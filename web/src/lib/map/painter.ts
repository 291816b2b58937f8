/** Draws a map model on one canvas, and only while there is something to draw. */
import { type MapModel, PULSE_MS } from "./model";
import { buildPalette, type HeatRange, type Mode, type ThemeColors } from "./palette";
import { rasterize } from "./raster";
import type { Layout } from "./view";

/** Without motion a routed expert is outlined, still, for this long. */
const STILL_MS = 1000;
/** ... unless most of its layer was routed with it: an outline around everything points at nothing. */
const STILL_STRENGTH = 0.5;

export interface PainterOptions {
  mode: Mode;
  animate: boolean;
  theme: ThemeColors;
  gridColor: string;
  markColor: string;
}

export class MapPainter {
  private readonly context: CanvasRenderingContext2D;
  private readonly small = document.createElement("canvas");
  private readonly smallContext: CanvasRenderingContext2D;
  private image: ImageData | null = null;
  private pixels: Uint32Array = new Uint32Array(0);
  private palette: Uint32Array = new Uint32Array(0);
  private paletteHeat: HeatRange | null = null;
  private options: PainterOptions | null = null;
  private layout: Layout | null = null;
  private frame = 0;
  private readonly unsubscribe: () => void;

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly model: MapModel,
  ) {
    const context = canvas.getContext("2d", { alpha: false });
    const small = this.small.getContext("2d", { alpha: false });
    if (!context || !small) throw new Error("This browser offers no 2-D canvas.");
    this.context = context;
    this.smallContext = small;
    this.unsubscribe = model.subscribe(() => this.request());
  }

  configure(options: PainterOptions, layout: Layout): void {
    this.options = options;
    this.layout = layout;
    this.paletteHeat = null;
    if (this.canvas.width !== layout.width) this.canvas.width = layout.width;
    if (this.canvas.height !== layout.height) this.canvas.height = layout.height;
    this.request();
  }

  dispose(): void {
    cancelAnimationFrame(this.frame);
    this.unsubscribe();
  }

  private request(): void {
    if (this.frame !== 0) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      const now = performance.now();
      this.draw(now);
      // The frame after the last pulse died has painted the resting picture; then the loop sleeps.
      if (now - this.model.lastLit < PULSE_MS + 50) this.request();
    });
  }

  private draw(now: number): void {
    const { model, options, layout } = this;
    if (!options || !layout || layout.rows !== model.rows || layout.cols !== model.cols) return;
    if (model.size === 0) return;
    if (this.image?.width !== model.cols || this.image.height !== model.rows) {
      this.small.width = model.cols;
      this.small.height = model.rows;
      this.image = this.smallContext.createImageData(model.cols, model.rows);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    if (this.paletteHeat !== model.heat) {
      this.palette = buildPalette(options.theme, options.mode, model.heat);
      this.paletteHeat = model.heat;
    }
    rasterize(model, this.palette, now, options.animate, this.pixels);
    this.smallContext.putImageData(this.image, 0, 0);
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(this.small, 0, 0, layout.width, layout.height);
    if (layout.gap > 0) this.grid(layout, options.gridColor);
    if (!options.animate && now - model.lastLit < STILL_MS) this.outline(now, layout, options);
  }

  private grid(layout: Layout, color: string): void {
    this.context.fillStyle = color;
    for (let col = 1; col <= layout.cols; col++) {
      this.context.fillRect(col * layout.cellWidth - layout.gap, 0, layout.gap, layout.height);
    }
    for (let row = 1; row <= layout.rows; row++) {
      this.context.fillRect(0, row * layout.cellHeight - layout.gap, layout.width, layout.gap);
    }
  }

  private outline(now: number, layout: Layout, options: PainterOptions): void {
    const { cellWidth, cellHeight, gap, cols } = layout;
    const line = Math.max(1, Math.round(Math.min(cellWidth, cellHeight) / 8));
    this.context.strokeStyle = options.markColor;
    this.context.lineWidth = line;
    for (let i = 0; i < this.model.litAt.length; i++) {
      if (now - (this.model.litAt[i] ?? 0) >= STILL_MS) continue;
      if ((this.model.strength[i] ?? 0) < STILL_STRENGTH) continue;
      this.context.strokeRect(
        (i % cols) * cellWidth + line / 2,
        Math.floor(i / cols) * cellHeight + line / 2,
        cellWidth - gap - line,
        cellHeight - gap - line,
      );
    }
  }
}
