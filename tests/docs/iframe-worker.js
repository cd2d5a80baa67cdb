// Browsers start no worker for a page that was opened as a file. There an invisible frame stands in
// for it, so that the search of the site works without a web server.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.documentElement.append(frame)
      this.inner = frame.contentWindow
      this.inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.inner.importScripts = (...urls) => Promise.all(urls.map(one => this.load(one)))
      this.ready = this.load(url)
    }

    load(url) {
      return new Promise((done, failed) => {
        const page = this.inner.document
        const script = page.createElement("script")
        script.src = new URL(url, location.href).href
        script.onload = done
        script.onerror = failed
        page.body.append(script)
      })
    }

    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.inner.frameElement.remove()
    }
  }
}
