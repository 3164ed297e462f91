// A page that is opened from the disk may start no worker: the search's script runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.inside = new Promise((loaded) => {
        frame.onload = () => {
          const inside = frame.contentWindow;
          const script = inside.document.createElement("script");
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          script.onload = () => loaded(inside);
          script.src = new URL(url, location.href).href;
          frame.onload = null;
          inside.document.body.appendChild(script);
        };
      });
      document.body.appendChild(frame);
    }

    async postMessage(data) {
      const inside = await this.inside;
      inside.dispatchEvent(new inside.MessageEvent("message", { data }));
    }
  };
  window.Worker = window.IFrameWorker;
}
