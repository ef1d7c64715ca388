"use strict";
// The frame of a notebook is as high as what it shows.
const fit = () => { if (window.frameElement) window.frameElement.style.height = `${document.documentElement.offsetHeight}px`; };
addEventListener("load", fit);
addEventListener("resize", fit);
