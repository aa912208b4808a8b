// A canvas that has the pixels of its place on the screen, and is drawn at most once a frame.

export class Surface {
  width = 0;
  height = 0;
  readonly context: CanvasRenderingContext2D;
  private frame = 0;
  private observer: ResizeObserver;

  constructor(
    readonly canvas: HTMLCanvasElement,
    private paint: (context: CanvasRenderingContext2D, width: number, height: number) => void,
  ) {
    const context = canvas.getContext("2d", { alpha: false });
    if (!context) throw new Error("this browser has no canvas");
    this.context = context;
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(canvas);
    this.resize();
  }

  close(): void {
    this.observer.disconnect();
    cancelAnimationFrame(this.frame);
    this.frame = -1;
  }

  // draw paints in the next frame.
  draw(): void {
    if (this.frame !== 0) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.paint(this.context, this.width, this.height);
    });
  }

  private resize(): void {
    const ratio = window.devicePixelRatio || 1;
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.paint(this.context, this.width, this.height);
  }
}
